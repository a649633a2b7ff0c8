"""Models, text and reports that come from or go to other libraries."""
