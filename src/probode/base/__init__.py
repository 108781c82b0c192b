"""What every package uses: precision, records, compiling, limits, errors, how a solve ends."""
