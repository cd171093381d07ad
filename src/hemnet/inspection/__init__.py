"""What a model and its EM unit do on an image; read by the report, the app and the studies."""
