"""The certificate of a service: one that the operator names, or one of an authority of the service's own."""
