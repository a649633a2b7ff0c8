"""Does the verb agree with its subject, and not with the noun that stands between them?"""

from __future__ import annotations

import random
from itertools import product

from depthkit.interop.lm_eval.tasks import TASKS
from depthkit.interop.lm_eval.tasks.base import Document, Task

SUBJECTS = {
    "author": "authors",
    "baker": "bakers",
    "doctor": "doctors",
    "driver": "drivers",
    "farmer": "farmers",
    "guard": "guards",
    "lawyer": "lawyers",
    "neighbor": "neighbors",
    "officer": "officers",
    "painter": "painters",
    "pilot": "pilots",
    "sailor": "sailors",
    "singer": "singers",
    "student": "students",
    "teacher": "teachers",
    "writer": "writers",
}
ATTRACTORS = {
    "boat": "boats",
    "bridge": "bridges",
    "car": "cars",
    "chair": "chairs",
    "door": "doors",
    "garden": "gardens",
    "house": "houses",
    "mirror": "mirrors",
    "river": "rivers",
    "statue": "statues",
    "table": "tables",
    "tower": "towers",
    "tree": "trees",
    "window": "windows",
}
PLACES = ("near", "behind", "beside", "in front of", "next to")
VERBS = [" is", " are"]
CONDITIONS = ((0, 1), (1, 0), (0, 0), (1, 1))
"""Number of the subject and of the noun between: 0 singular, 1 plural. Those that differ come first."""
EXAMPLES = 32


@TASKS.register("agreement")
class Agreement(Task):
    """Subject-verb agreement across an attractor: after "The author near the cars", " is" or " are"?

    Half of the subjects are plural, and in half of each the noun between has the other number, so a model
    that knows only one verb, or only the last noun, is right half of the time. After the stimuli of
    arXiv:1611.01368, with words of our own.
    """

    def documents(self) -> list[Document]:
        """As many as asked, the four conditions in turn.

        Raises:
            ValueError: more than there are.
        """
        every = self._every()
        most = len(every) - EXAMPLES
        if self.config.count > most:
            raise ValueError(f"agreement: has {most} items, not {self.config.count}")
        return every[: self.config.count]

    def examples(self) -> list[Document]:
        """The last of all."""
        return self._every()[-EXAMPLES:]

    def _every(self) -> list[Document]:
        frames = list(product(SUBJECTS.items(), PLACES, ATTRACTORS.items()))
        shuffled = [
            random.Random(f"{self.config.seed} {condition}").sample(frames, len(frames))
            for condition in CONDITIONS
        ]
        return [
            _document(subject[own], place, attractor[other], own)
            for row in zip(*shuffled, strict=True)
            for (subject, place, attractor), (own, other) in zip(row, CONDITIONS, strict=True)
        ]


def _document(subject: str, place: str, attractor: str, number: int) -> Document:
    return {"context": f"The {subject} {place} the {attractor}", "choices": VERBS, "gold": number}
