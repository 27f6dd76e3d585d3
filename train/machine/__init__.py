"""The computer a training runs on: its processes, random streams, arithmetic, memory and memory layout. Nothing here
knows what is trained."""
