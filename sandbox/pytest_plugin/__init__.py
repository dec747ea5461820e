"""What the pytest plugin does once a test asks for a sandbox. The plugin itself, its hooks and fixtures, is ``gamebox_pytest``."""
