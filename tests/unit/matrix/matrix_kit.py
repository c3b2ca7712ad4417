"""What the matrix tests share: the project's place and a small consistent matrix."""

from __future__ import annotations

from pathlib import Path

PROJECT = Path(__file__).parents[3]
FLAGSHIP = "cu121-torch2.3-vllm0.6.3"

SMALL = """\
matrix-version = 1

[capabilities."8.0"]
name = "A100"
source = "a table"

[capabilities."8.7"]
name = "Orin"
tegra = true
source = "a table"

[capabilities."9.0"]
name = "H100"
variants = ["a"]
source = "a table"

[cuda."12.1"]
native-driver = "530.30.02"
minor-driver = "525.60.13"
driver-source = "notes"
newest-gcc = 12
gcc-source = "host_config.h"
targets = ["8.0", "9.0", "9.0a"]
targets-source = "ptxas"
nvcc = ["12.1.105"]
releases = { "12.1.1" = "12.1.105" }

[cuda."12.4"]
native-driver = "550.54.14"
minor-driver = "525.60.13"
driver-source = "notes"
targets = ["8.0", "9.0", "9.0a"]
targets-source = "ptxas"
nvcc = ["12.4.131"]

[cuda."13.0"]
native-driver = "580.65.06"
minor-driver = "580"
driver-source = "notes"
newest-gcc = 15
gcc-source = "host_config.h"
targets = ["8.0", "9.0"]
targets-source = "ptxas"
nvcc = ["13.0.88"]

[torch."2.3.0+cu121"]
version = "2.3.0"
cuda = "12.1"
pythons = ["3.11", "3.12"]
capabilities = ["8.0"]
source = "wheel"

[torch."2.4.0+cu121"]
version = "2.4.0"
cuda = "12.1"
pythons = ["3.11"]
source = "wheel"

[toolkits."tool-12.1.105"]
line = "12.1"
source = "somewhere"

[toolkits."tool-13.0.88"]
line = "13.0"
source = "somewhere"

[releases.pkg."1.0"]
torch = "2.4.0"
cuda = "12.1"
python = ">=3.8,<3.13"
capabilities = ["8.0", "9.0+PTX"]
source = "wheel"

[releases.free."0.1.0"]
source = "its own repository"

[combos."cu121-torch2.3-pkg1.0"]
torch = "2.3.0+cu121"
source = "here"
"""
