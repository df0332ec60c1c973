"""Types, limits and rules that every layer shares. Imports no other layer."""
