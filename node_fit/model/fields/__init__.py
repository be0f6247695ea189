"""Vector fields."""
