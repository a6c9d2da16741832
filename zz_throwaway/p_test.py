#!/usr/bin/env python3
import os,sys; print(os.path.realpath("WORKSPACE"), sys.version, sys.executable, os.getcwd())
