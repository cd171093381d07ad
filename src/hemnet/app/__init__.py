"""The explorer in the browser: `hemnet app`. Only `routes` and `server` need the app extra."""
