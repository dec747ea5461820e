"""Commands: started, fed, watched for their end, and stopped."""
