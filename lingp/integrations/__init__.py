"""lingp inside other libraries, each of which has to be installed to be used."""
