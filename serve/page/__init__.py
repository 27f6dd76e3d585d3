"""The page on which a visitor sees what a certificate is: static files, and what only a page asks of a model.

Certificates come from the addresses that every client uses, the votes from their stream; `views` (noisy copies that
vote), `walks` (the labels along a direction, an ordinary network's beside ours) and `prices` (what n votes prove at
each alpha) are the page's own. `static/` is plain HTML, CSS and JavaScript, which computes no number.
"""

from .material import Example, Material, material_beside
from .prices import prices
from .routes import PageModel, page_routes
from .views import views
from .walks import walk

__all__ = ["Example", "Material", "PageModel", "material_beside", "page_routes", "prices", "views", "walk"]
