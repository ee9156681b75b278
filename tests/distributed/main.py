"""The command line as a script that torchrun takes."""

from headwater.cli import main

main()
