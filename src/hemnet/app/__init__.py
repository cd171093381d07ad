"""The explorer in the browser: `hemnet app`. Only `page` and `server` need gradio."""
