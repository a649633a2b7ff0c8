"""Text to train on."""


def verses(folder, count):
    """So many numbered verses in a file of `folder`, as the settings of a corpus."""
    text = folder / "text.txt"
    lines = (f"Verse {i}: in the beginning was line {i * 7919 % 1000}." for i in range(count))
    text.write_text("\n\n".join(lines))
    return {"kind": "files", "paths": [str(text)], "separator": "\n\n", "validation_fraction": 0.3}
