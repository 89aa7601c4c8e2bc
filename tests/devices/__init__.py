"""Programs on several devices: each case runs in a process of its own with forced host devices."""
