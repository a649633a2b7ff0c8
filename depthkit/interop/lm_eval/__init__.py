"""Tasks of EleutherAI's lm-evaluation-harness, asked of any model that eval.py can open."""
