"""The public APIs. Each translates to the broker's verbs and back, and decides nothing itself."""
