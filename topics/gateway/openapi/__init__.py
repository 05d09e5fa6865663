"""The API's description of itself: OpenAPI 3.1, made from the route table and the structs that check requests."""
