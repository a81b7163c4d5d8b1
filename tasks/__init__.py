"""One thin file per stage and per phase: read refs, call rlcore, write refs, publish."""
