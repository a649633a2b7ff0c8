"""Sources of records for fine-tuning corpora, one registered file each."""
