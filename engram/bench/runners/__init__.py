"""Programs that train with one library each and are measured from outside; they run in that library's environment.

They know nothing of Engram: a peer's virtual environment has the peer, torch and the task, and `meter` beside them.
"""
