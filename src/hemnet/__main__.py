from hemnet.cli import main

if __name__ == "__main__":
    main()
