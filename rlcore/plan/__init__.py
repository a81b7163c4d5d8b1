"""What a run will do, told and checked before it starts: batches, memory, time, functions, data."""
