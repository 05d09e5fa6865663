"""The pure core: decisions without disk, sockets or clocks; time is passed in."""
