"""What a run, or several, came to, on one page that can be mailed: `launch.report`, `compare`."""
