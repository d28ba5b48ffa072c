"""python -m oncebox"""

from oncebox.cli import main

if __name__ == "__main__":
    main(prog_name="oncebox")
