"""Puts this directory on the path, so that every test can import the shared table `cases`."""
