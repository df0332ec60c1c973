"""Java and Spark sessions."""
