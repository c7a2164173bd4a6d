from dpnoise.bench.comparison import compare as compare
from dpnoise.bench.inverse import budget as budget, clients as clients
from dpnoise.bench.table import Comparison as Comparison, Row as Row
from dpnoise.bench.trial import noisy_sum as noisy_sum
