"""Turns the journal into tables, computed by Spark and stored with Delta Lake. Needs `penstock-mq[spark]`."""
