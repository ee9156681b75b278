"""Reports: what runs did, as one HTML file that needs no network."""
