"""Where the files of a sandbox lie: disks of a fixed size, volumes of the engine, and volumes that outlive sandboxes."""
