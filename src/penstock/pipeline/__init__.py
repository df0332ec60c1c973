"""What passed through the queues, as tables: Spark computes, Delta Lake keeps. Needs `penstock-mq[spark]`."""
