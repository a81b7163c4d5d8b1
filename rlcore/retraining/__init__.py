"""What is new since the champion, the gate before it, and the history of champions."""
