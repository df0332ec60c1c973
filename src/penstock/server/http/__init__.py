"""HTTP/1.1, WebSockets and ASGI."""
