"""The same work by this project and by TRL, each in processes of its own."""
