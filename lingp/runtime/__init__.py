"""What the library stands on: memory, processes, progress, files, the speed of the machine."""
