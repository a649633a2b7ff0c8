"""Questions with choices as token ids, which probes ask of an altered model, and what a report keeps."""
