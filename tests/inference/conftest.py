"""Puts this directory on the path, so that the tests of every room can import the shared cases."""
