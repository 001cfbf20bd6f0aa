from covey.python import Environment as Environment
from covey.python import LocalRun as LocalRun
from covey.python import Pool as Pool
from covey.python import evaluate as evaluate
from covey.python import train as train

__version__: str
