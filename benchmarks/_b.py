import argparse,sys
sys.path.insert(0,'.')
from hf_selfjudge.bench.command import add_bench
p=argparse.ArgumentParser(); c=p.add_subparsers(); add_bench(c)
a=vars(p.parse_args()); r=a.pop("run"); r(**a)
