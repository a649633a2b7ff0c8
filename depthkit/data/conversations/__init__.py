"""Fine-tuning on conversations: from records to windows in which responses alone are scored."""
