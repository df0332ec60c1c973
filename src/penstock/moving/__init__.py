"""Moving all that a store holds to the other kind of store: from a SQLite file to PostgreSQL, or back."""
