"""What is asked: the files of every task, as episodes."""
