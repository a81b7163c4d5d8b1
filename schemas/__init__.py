"""Types that cross a seam: recipe (pydantic), tables (Pandera), refs and manifests. Imports
nothing of ours."""
