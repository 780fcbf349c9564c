"""Do audits find what they should, and only that? Honest runs, and runs whose noise was spoilt."""
