"""`python -m service.api.openapi > docs/openapi.json`: the document that the service serves at /openapi.json."""

import json
import sys

from service.api.app import ROUTED
from service.api.openapi.document import document

routes = [route for module in ROUTED for route in module.router.routes]
sys.stdout.write(json.dumps(document(routes), indent=2, ensure_ascii=False) + "\n")
