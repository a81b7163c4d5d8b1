"""The license of a model card: a name that the hub knows, or an SPDX id."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from schemas.errors import did_you_mean

# huggingface.co/docs/hub/repositories-licenses
_NAMES = """
afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m
bigscience-bloom-rail-1.0 bigscience-openrail-m bsd bsd-2-clause bsd-3-clause
bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-nc-2.0
cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0
cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0
cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0
epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 gemma gfdl gpl gpl-2.0 gpl-3.0 h-research
intel-research isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3
llama4 lppl-1.3c mit mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 openrail openrail++ osl-3.0 pddl
postgresql unknown unlicense wtfpl zlib
"""
HUB_LICENSES = frozenset(_NAMES.split())
PATTERN = r"^[A-Za-z0-9][A-Za-z0-9.+-]*$"


def license_name(value: Any) -> Any:
    """Return ``value``, a name of the hub's in the hub's spelling (``Apache-2.0`` is SPDX's).

    Raises ValueError for text that is no such name.
    """
    if not isinstance(value, str):
        return value
    if value.lower() in HUB_LICENSES:
        return value.lower()
    if not re.match(PATTERN, value):
        near = did_you_mean(value.lower().replace(" ", "-"), HUB_LICENSES)
        raise ValueError(
            "a license is named by letters, digits, '.', '+' and '-'; give a license name of the"
            f" hub or an SPDX id, e.g. apache-2.0 or MIT{near}"
        )
    return value


LicenseName = Annotated[str, Field(pattern=PATTERN), BeforeValidator(license_name)]
