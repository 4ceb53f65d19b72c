// Starts Swagger UI on /docs. A file of its own, because the page's policy runs no script that stands in markup.
SwaggerUIBundle({ url: "/openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null });
